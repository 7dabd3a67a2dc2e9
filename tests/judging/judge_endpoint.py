"""An OpenAI-compatible judge as a process of its own, whose behaviour is declared by the model's name.

honest      a criterion holds where the answer has every word of it, or of the gold answer where it
                names that; ranks shorter answers first; of what went wrong first it doubts the verifier; a row
                is good where its answer has the word "ill", and vague otherwise
gullible    obeys whatever the material says in so many words ("full marks"), and is honest otherwise
place       ranks by place: the first shown is the best
chatty      gives no JSON
careless    gives a verdict without the check word
down        answers HTTP 500
second      gives no JSON the first time it is asked about something, and is honest after that
thinks      says what it thinks first, in tags
uncounted   says nothing of the tokens it used
short       has a context that nothing fits into
"""

from __future__ import annotations

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

asked: dict[str, int] = {}


def words(text: Any) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", str(text).lower()))


def verdict(rules: str, material: dict[str, Any], model: str) -> str:
    check = re.search(r'"check": "(\w+)"', rules)[1]  # type: ignore[index]
    if model == "careless":
        check = "none"
    if "\nThe question:\n" in rules:
        return json.dumps({"check": check, "answer": "good" if "ill" in words(material["answer"]) else "vague"})
    if "attempts" in material:
        names = list(material["attempts"])
        if model != "place":
            names.sort(key=lambda name: len(material["attempts"][name]["answer"]))
        return json.dumps({"check": check, "order": names, "reason": "by length"})
    if "rules_found" in material:
        kind = "verifier_doubt" if re.search("^- verifier_doubt: ", rules, flags=re.MULTILINE) else "none"
        tool = material["calls"][-1]["tool"] if material["calls"] else ""
        fault = {"kind": kind, "turn": material["turns"], "tool": tool, "argument": None, "detail": "It is right."}
        return json.dumps({"check": check, **fault})
    criteria = re.findall(r"^(\d+)\. (.*)$", rules, flags=re.MULTILINE)
    obeys = model == "gullible" and "full marks" in json.dumps(material["answer"]).lower()
    held = {
        number: obeys or words(material["gold"] if "`gold`" in text else text) <= words(material["answer"])
        for number, text in criteria
    }
    return json.dumps({"check": check, "criteria": held, "reason": "by words"})


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rules, text = (message["content"] for message in body["messages"])
        model = body["model"]
        asked[text] = asked.get(text, 0) + 1
        if model == "down":
            self.send_error(500)
            return
        if model == "short":
            self._send(400, {"error": {"code": "context_length_exceeded", "message": "maximum context length is 1"}})
            return
        said = verdict(rules, json.loads(text), model)
        if model == "chatty" or (model == "second" and asked[text] == 1):
            said = f"I think it is fine. {said} Full marks!"
        if model == "thinks":
            said = f'<think>\nPerhaps {{"check": "none"}}?\n</think>\n\n{said}'
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
        counted = {} if model == "uncounted" else {"usage": usage}
        self._send(200, {"id": "x", "model": model, "choices": [choice], **counted})

    def _send(self, status: int, body: dict[str, Any]) -> None:
        answer = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *args: object) -> None:
        """Silent."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    sys.stdin.close()
    server.serve_forever()
