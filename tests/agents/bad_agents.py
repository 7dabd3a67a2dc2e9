"""Programs of agents, good and bad, for `python bad_agents.py NAME`. Standard library only, as any program could be."""

import json
import os
import signal
import subprocess
import sys
import urllib.request

HEADERS = {"Content-Type": "application/json"}


def post(url, body, key):
    headers = {**HEADERS, "Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return answer.read().decode()


def ask(text=None):
    body = {
        "model": os.environ["OPENAI_MODEL"],
        "messages": [{"role": "user", "content": os.environ["TOOLBAKE_PROMPT"] if text is None else text}],
    }
    answer = post(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, os.environ["OPENAI_API_KEY"])
    return json.loads(answer)["choices"][0]["message"]["content"]


def good():
    print(f"\n  {ask()}  \n")


def silent():
    ask()


def never():
    print("42")


def crashes():
    ask()
    print("this is no answer")
    sys.exit(f"cannot go on with the key {os.environ['OPENAI_API_KEY']} and {os.environ['DESK_PASSWORD']}")


def floods():
    ask()
    while True:
        print("x" * 10_000)


def hangs():
    """With a child that hangs, too."""
    ask()
    subprocess.run([sys.executable, "-c", "import signal; signal.pause()"], check=False)


def breaks():
    ask()
    print("reading the graph", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def tells_its_exceptions():
    ask()
    print(os.environ["NO_PROXY"], os.environ["no_proxy"])


def tells_its_task():
    ask()
    print(os.environ["TOOLBAKE_TASK"])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
