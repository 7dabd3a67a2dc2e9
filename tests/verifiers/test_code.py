"""Code against hidden tests: what is right passes; what cheats, hangs, digs or floods gets nothing, harms nothing."""

import os
import socket
import sys
import threading
from pathlib import Path

import pytest
from rollouts_for_verifiers import rollout

from sdk.errors import ConfigError, VerifierError
from sdk.verifiers import code_passes, run_verifier
from sdk.verifiers.confined import ConfinedLimits, call_confined, confinement, run_confined

SECRET = "7f3a-expected"
TESTS = [
    {"call": "solve", "args": [3], "returns": {"$near": 9, "within": 0}},
    {"call": "solve", "args": [-1], "raises": "ValueError"},
    {"call": "solve", "kwargs": {"n": 0}, "returns": SECRET},
]
RIGHT = f"def solve(n):\n    if n < 0:\n        raise ValueError(n)\n    return n * n if n else {SECRET!r}\n"
LIMITS = ConfinedLimits(seconds=30, cpu_seconds=1, memory_mb=256, file_mb=1)

EVERYWHERE = """import os
for fd in range(3, 32):
    try:
        os.lseek(fd, 0, 0)
    except OSError:
        pass
    else:
"""
"""Code that does something with every descriptor that it finds open."""

confined_machine = pytest.mark.skipif(
    sys.platform != "linux" or not (confinement().files and confinement().processes),
    reason="this kernel has no Landlock or seccomp; code_passes says so and scores nothing",
)


async def judge(code, tests=TESTS, **options):
    one = rollout(f"Here:\n```python\n{code}\n```", expected={"tests": tests})
    return await run_verifier(code_passes(limits=LIMITS, **options), one)


@confined_machine
async def test_right_code_passes_every_test_in_a_process_of_its_own():
    verdict = await judge(RIGHT)
    assert (verdict.score, verdict.components) == (1, {"tests": 1.0}), verdict.explanation


@confined_machine
async def test_a_program_is_judged_by_what_it_prints():
    tests = [{"stdin": "20 1\n", "prints": "21"}, {"stdin": "1 1", "prints": "2\n"}]
    assert (await judge("print(sum(map(int, input().split())))", tests)).score == 1
    half = await judge("print(21)", tests)
    assert (half.score, half.components) == (0, {"tests": 0.5})


@confined_machine
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def solve(n): return 9", "returned 9 instead of raising"),
        ("def solve(n): return True", "it returned True"),
        ("def solve(n):\n    while True: pass", "limits: 1 s of CPU"),
        ("def solve(n): return [0] * 10**9", "MemoryError"),
        ("def solve(n): open('x', 'w').write('x' * 10**7)", "File too large"),
        ("def solve(n):\n    import os; os._exit(0)", "without a result"),
        ("class Any:\n    def __eq__(self, other): return True\ndef solve(n): return Any()", "not JSON serializable"),
        ("def solve(n): return float('nan')", "ValueError"),
        ("def other(n): return n", "KeyError"),
        ("def solve(n:", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos.write(4, b'{\"returned\": 9}')\nos._exit(0)", "test 1 of 1"),
        # What is left in place of a result is a wrong answer, and nothing that leaves the rollout unscored.
        (f"{EVERYWHERE}        os.ftruncate(fd, 0)\nos._exit(0)", "without a result"),
        (f"{EVERYWHERE}        os.write(fd, b'[' * 10**6)\nos._exit(0)", "result that cannot be read"),
        (f"{EVERYWHERE}        os.write(fd, b'5')\nos._exit(0)", "result that cannot be read"),
        (f"{EVERYWHERE}        os.write(fd, b'{{\"raised\": 5}}')\nos._exit(0)", "it returned None"),
        (f"{EVERYWHERE}        os.write(fd, b'\\xff\\n\\n')\nos._exit(0)", "result that cannot be read"),
        ("import signal\nsignal.raise_signal(41)", "test 1 of 1"),
    ],
)
async def test_wrong_greedy_or_lying_code_does_not(code, reason):
    verdict = await judge(code, TESTS[:2] if "instead of raising" in reason else TESTS[:1])
    assert verdict.score == 0
    assert reason in verdict.explanation


def kept_out(body, **options):
    """What a program prints that tries `body` without the guard in the interpreter: what the kernel alone refuses."""
    program = f"import os, sys\ntry:\n    print('got in:', {body})\nexcept OSError as error:\n    print('kept out')"
    return run_confined(program, limits=LIMITS, audit=False, **options).stdout.strip()


@confined_machine
def test_the_kernel_keeps_the_code_from_files_processes_and_the_parent(tmp_path):
    (tmp_path / "tests.json").write_text(SECRET)
    parent = os.getpid()
    assert kept_out(f"open({str(tmp_path / 'tests.json')!r}).read()") == "kept out"
    assert kept_out(f"open({str(Path(__file__))!r}).read()") == "kept out"
    assert kept_out(f"open('/proc/{parent}/environ').read()") == "kept out"
    assert kept_out(f"open('/proc/{parent}/mem', 'rb').read(1)") == "kept out"
    assert kept_out(f"os.kill({parent}, 0)") == "kept out"
    assert kept_out("os.fork()") == "kept out"
    assert kept_out("os.execv('/bin/sh', ['sh', '-c', 'id'])") == "kept out"
    assert kept_out("open('mine', 'w').write('x')") == "got in: 1"  # its own folder is its own


@pytest.mark.skipif(sys.platform != "linux" or not confinement().network, reason="no confinement of the network here")
def test_no_connection_is_made_even_to_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        tries = f"__import__('socket').create_connection(('127.0.0.1', {port}), 2)"
        assert kept_out(tries) == "kept out"
        with pytest.raises(TimeoutError):
            server.accept()


@confined_machine
def test_limits_cannot_be_raised_again():
    code = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))"
    assert call_confined(code, "solve", limits=LIMITS).raised[:1] in [
        ("ValueError",),
        ("PermissionError",),
        ("OSError",),
    ]


@confined_machine
def test_no_environment_and_no_expected_value_reaches_the_child(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    digs = """
import os, sys, gc
def solve(n):
    frame, seen = sys._getframe(), []
    while frame:
        seen.append(repr(frame.f_locals) + repr(list(frame.f_globals)))
        frame = frame.f_back
    for number in range(20):
        try:
            os.lseek(number, 0, 0)
            seen.append(os.read(number, 65536).decode())
        except OSError:
            pass
    return "".join(seen) + repr(dict(os.environ)) + repr(sys.argv)
"""
    found = call_confined(digs, "solve", [0], limits=LIMITS)
    assert found.problem is None
    assert SECRET not in found.returned
    assert "OPENAI_API_KEY" not in found.returned


@confined_machine
async def test_a_hanging_program_leaves_no_process_behind():
    before = threading.active_count()
    assert (
        "was not done after"
        in (
            await run_verifier(
                code_passes(limits={"seconds": 4}),
                rollout("import time\ntime.sleep(60)", expected={"tests": [{"prints": ""}]}),
            )
        ).explanation
    )
    assert threading.active_count() <= before + 1


@pytest.mark.parametrize("answer", ["", "```python\na=1\n```\n```python\nb=1\n```", "```python\nnever closed"])
async def test_an_answer_without_one_piece_of_code_is_wrong(answer):
    one = rollout(answer, expected={"tests": TESTS})
    assert (await run_verifier(code_passes(needs=()), one)).score == 0


@pytest.mark.parametrize(
    "tests",
    [None, [], "solve", [{"call": "solve"}], [{"call": "solve", "returns": 1, "raises": "E"}], [{"stdin": "x"}]],
)
async def test_a_task_without_tests_leaves_the_rollout_unscored(tests):
    with pytest.raises(VerifierError, match=r"expected\['tests'\]"):
        await judge(RIGHT, tests)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: code_passes(limits={"cpu": 1}), "there is no limit 'cpu'; the limits are seconds, cpu_seconds"),
        (lambda: code_passes(needs=("disk",)), "choose among files, network, processes"),
        (lambda: code_passes("answer"), "source is 'answer'; give a function"),
    ],
)
def test_options_that_cannot_work_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
