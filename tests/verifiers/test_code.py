"""Code against hidden tests: what is right passes; what cheats, hangs, digs or floods gets nothing, harms nothing."""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from rollouts_for_verifiers import rollout

from sdk.errors import ConfigError, VerifierError
from sdk.verifiers import code_passes, run_verifier
from sdk.verifiers import code_tests as running
from sdk.verifiers import confined_child as kernel
from sdk.verifiers.code_tests import ConfinedLimits, call_confined, confinement, run_confined

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
    at_exit = "import atexit, io, sys\nsys.stdout = io.StringIO()\n"
    at_exit += (
        "atexit.register(lambda: sys.__stdout__.write(sys.stdout.getvalue()))\nprint(sum(map(int, input().split())))"
    )
    assert (await judge(at_exit, tests)).score == 1
    half = await judge("print(21)", tests)
    assert (half.score, half.components) == (0, {"tests": 0.5})


@confined_machine
@pytest.mark.parametrize("leave", ["exit()", "quit()", "sys.exit()"])
async def test_a_program_may_leave_as_programs_do(leave):
    code = f"import sys\nif input() == '0':\n    print('none')\n    {leave}\nprint('some')"
    tests = [{"stdin": "0\n", "prints": "none"}, {"stdin": "2\n", "prints": "some"}]
    verdict = await judge(code, tests)
    assert verdict.score == 1, verdict.explanation


class LongTurn:
    """A turn that takes a hundred seconds to come."""

    waited_s = 0.0

    def __enter__(self):
        LongTurn.waited_s += 100

    def __exit__(self, *raised):
        pass


@confined_machine
async def test_the_wait_for_a_free_core_is_not_the_codes_time(monkeypatch):
    monkeypatch.setattr(LongTurn, "waited_s", 0.0)
    monkeypatch.setattr(running, "_TURNS", LongTurn())
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + LongTurn.waited_s))
    verdict = await judge(RIGHT)
    assert verdict.score == 1, verdict.explanation
    assert LongTurn.waited_s == 100 * len(TESTS)


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


WITH_ABI = """
import sys
from sdk.verifiers.code_tests import ConfinedLimits, run_confined
from sdk.verifiers import code_tests as running

asked = "abi = _LIBC.syscall(_LANDLOCK_CREATE, None, 0, 1)"
abi, victim = sys.argv[1:]
text = running._program()
assert asked in text
running._program = lambda: text.replace(asked, f"abi = {abi}")
code = f"victim = {victim!r}" + sys.stdin.read()
out = run_confined(code, limits=ConfinedLimits(seconds=60), audit=False)
print(out.problem or out.stdout.strip())
"""
"""A program that runs code confined as on a kernel whose Landlock has the version in its first argument."""


def confined_with_abi(abi, victim, code):
    return subprocess.run(
        [sys.executable, "-c", WITH_ABI, str(abi), str(victim)], input=code, capture_output=True, text=True, timeout=100
    )


@confined_machine
@pytest.mark.parametrize("abi", [2, 4, 5])
@pytest.mark.parametrize(
    "owner",
    [
        "fcntl.fcntl(reads, fcntl.F_SETOWN, os.getppid())",
        "fcntl.fcntl(reads, 15, struct.pack('ii', 1, os.getppid()))",  # F_SETOWN_EX
    ],
)
def test_code_cannot_have_the_kernel_signal_its_parent_on_older_kernels(abi, owner, tmp_path):
    code = f"""
import fcntl, os, signal, struct
reads, writes = os.pipe()
for step in (
    lambda: {owner},
    lambda: fcntl.fcntl(reads, 10, signal.SIGKILL),  # F_SETSIG
    lambda: fcntl.fcntl(reads, fcntl.F_SETFL, os.O_ASYNC),
    lambda: os.write(writes, b"x"),
):
    try:
        step()
    except OSError:
        pass
"""
    ended = confined_with_abi(abi, tmp_path, code)
    assert (ended.returncode, ended.stdout) == (0, "\n"), ended.stderr


@confined_machine
@pytest.mark.parametrize("abi", [1, 2, 7])
def test_code_cannot_empty_a_file_that_it_may_not_write(abi, tmp_path):
    victim = tmp_path / "model.safetensors"
    victim.write_text("weights")
    code = """
import os
for step in (
    lambda: os.truncate(victim, 0),
    lambda: os.open(victim, os.O_TRUNC),
    lambda: os.open(victim, os.O_TRUNC | os.O_ACCMODE),
):
    try:
        step()
    except OSError:
        print("refused")
open("mine", "w").write("again")
os.ftruncate(os.open("mine", os.O_RDWR), 2)
print(open("mine").read())
"""
    assert confined_with_abi(abi, victim, code).stdout.split() == ["refused"] * 3 + ["ag"]
    assert victim.read_text() == "weights"


@confined_machine
def test_code_cannot_change_modes_times_attributes_or_priorities(tmp_path):
    victim = tmp_path / "id_rsa"
    victim.write_text(SECRET)
    victim.chmod(0o600)
    before = victim.stat()
    path, parent = str(victim), os.getpid()
    affinity = os.sched_getaffinity(0)
    for body in (
        f"os.chmod({path!r}, 0o777)",
        f"os.utime({path!r}, (0, 0))",
        f"os.chown({path!r}, -1, -1)",
        f"os.setxattr({path!r}, 'user.x', b'1')",
        f"os.removexattr({path!r}, 'user.x')",
        f"os.fchmod(os.open({path!r}, os.O_PATH), 0o777)",
        f"os.setpriority(os.PRIO_PROCESS, {parent}, 5)",
        f"os.sched_setaffinity({parent}, {{{min(affinity)}}})",
    ):
        assert kept_out(body) == "kept out", body
    watch = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.inotify_init(), libc.prctl(1, 0, 0, 0, 0), libc.chmod({os.fsencode(path)!r}, 0o777))"
    )
    assert run_confined(watch, limits=LIMITS, audit=False).stdout.split() == ["-1", "-1", "-1"]
    after = victim.stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )
    assert os.sched_getaffinity(0) == affinity


@confined_machine
def test_the_handle_on_the_c_library_that_confines_is_out_of_reach():
    digs = "import sys\ndef solve(n):\n    return '_LIBC' in sys._getframe().f_back.f_globals"
    assert call_confined(digs, "solve", [1], limits=LIMITS).returned is False


@confined_machine
def test_installed_packages_can_neither_be_listed_nor_read_nor_imported():
    module = Path(pytest.__file__)
    packages = str(module.parent.parent)
    assert "-packages" in packages
    assert kept_out(f"os.listdir({packages!r})") == "kept out"
    assert kept_out(f"open({str(module)!r}).read()") == "kept out"
    code = f"import sys\nsys.path.append({packages!r})\ndef solve(n):\n    import pytest"
    assert call_confined(code, "solve", [1], limits=LIMITS).raised == (
        "ModuleNotFoundError", "ImportError", "Exception",
    )  # fmt: skip
    code = "def solve(n):\n    import sqlite3, xml.etree.ElementTree, zoneinfo, ssl, lzma\n    return 1"
    assert call_confined(code, "solve", [1], limits=LIMITS).returned == 1


@confined_machine
@pytest.mark.parametrize(
    ("old", "new", "not_kept_from"),
    [
        ("(0, 1, 2, 3, 4,", "(8, 0, 1, 2, 3, 4,", "processes"),
        ("umask 95 166", "umask 95 166, chmod 90 -, fchmodat 268 53", "files"),
        ("umask 95 166", "umask 95 166, utimensat 280 88", "files"),
        ("umask 95 166", "umask 95 166, sched_setaffinity 203 122", "processes"),
        ("done = bool(", "done = True or bool(", "files"),
    ],
)
def test_the_confinement_is_measured_and_not_assumed(old, new, not_kept_from, monkeypatch):
    text = running._program()
    assert text.count(old) == 1
    monkeypatch.setattr(running, "_program", lambda: text.replace(old, new))
    found = confinement.__wrapped__()
    assert [name for name in ("files", "processes") if not getattr(found, name)] == [not_kept_from]


HEADERS = {1: "x86_64-linux-gnu/asm/unistd_64.h", 2: "asm-generic/unistd.h"}


@pytest.mark.parametrize("column", HEADERS)
def test_the_numbers_of_system_calls_are_those_of_the_kernels_headers(column):
    header = Path("/usr/include") / HEADERS[column]
    if not header.exists():
        pytest.skip(f"there is no {header}")
    numbers = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    numbers.setdefault("newfstatat", numbers.get("fstatat"))
    for call in [*kernel._ALLOWED.split(","), *kernel._CHECKED, *kernel._OPENING]:
        name, number = call.split()[0], call.split()[column]
        assert numbers.get(name, "-") == number or number == "-", call


DIGGING = """
import os
def solve(n):
    for _ in range(1500):
        os.mkdir("d")
        os.chdir("d")
    return 9
"""


@confined_machine
@pytest.mark.parametrize("most", [500, 5000])
async def test_folders_in_folders_earn_no_unscored_rollout_and_are_removed(most, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    limits = ConfinedLimits(seconds=60, folder_files=most)
    one = rollout(f"```python\n{DIGGING}\n```", expected={"tests": TESTS[:1]})
    verdict = await run_verifier(code_passes(limits=limits), one)
    assert verdict.score == (most > 1500), verdict.explanation
    assert ("more than 64 MB or 500 files and folders" in verdict.explanation) == (most < 1500)
    assert os.listdir(tmp_path) == []


@confined_machine
@pytest.mark.parametrize("names", ["'b' * 10", "'\\udcff' * 200", "'l'"])
def test_whatever_lies_in_the_folder_is_removed(names, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    code = f"""
import os
name = {names}
os.mkdir(name)
os.mkdir(name + "/" + name, 0)
os.symlink({str(outside)!r}, name + "/link")
os.symlink("missing", "dangling")
os.umask(0o777)
os.mkdir("none")
"""
    out = run_confined(code, limits=LIMITS, audit=False)
    assert out.problem is None or "it wrote more" in out.problem  # what cannot be listed counts as too much
    assert os.listdir(tmp_path) == []
    assert outside.exists()


@confined_machine
@pytest.mark.parametrize(
    "body", ["open(str(i), 'wb').write(bytes(10**6))", "open(str(i % 2), 'wb').truncate(10**6)", "os.mkdir(str(i))"]
)
def test_all_files_together_are_limited(body, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = f"import os\nfor i in range(300):\n    {body}"
    out = run_confined(code, limits=ConfinedLimits(seconds=60, folder_mb=20, folder_files=250))
    assert (out.problem is None) == ("% 2" in body), out.problem
    assert out.problem in (None, "it wrote more than 20 MB or 250 files and folders")
    assert os.listdir(tmp_path) == []


@confined_machine
async def test_the_explanation_is_short_whatever_the_code_leaves():
    forged = '{"raised": "%s", "built_in": "%s", "message": "%s"}' % (("A" * 300_000,) * 3)
    verdict = await judge(f"{EVERYWHERE}        os.write(fd, b{forged!r})\nos._exit(0)")
    assert verdict.score == 0
    assert len(verdict.explanation) < 2500
    shouts = "class E(Exception): pass\nE.__name__ = 'B' * 10**5\ndef solve(n): raise E('C' * 10**5)"
    assert len((await judge(shouts)).explanation) < 2500


@confined_machine
async def test_annotations_are_evaluated_as_in_any_module():
    code = "def solve(n: int): return solve.__annotations__['n'] is int"
    assert (await judge(code, [{"call": "solve", "args": [1], "returns": True}])).score == 1


@confined_machine
@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("def solve(text): return text", "2026-04-01T10:00:00"),
        ("def solve(text): return {}", {"time": None}),
        ("def solve(text): return [{'zone': None}]", [{}]),
    ],
)
async def test_a_result_in_another_spelling_is_another_result(code, wanted):
    test = {"call": "solve", "args": ["2026-04-01 10:00:00"], "returns": wanted}
    assert (await judge(code, [test])).score == 0


CHAMELEON = """
names = ["KeyError", "ZeroDivisionError", "OSError", "Missing", "ValueError"]
found = Exception
for name in names:
    found = type(name, (found,), {})
def solve(n):
    raise found()
"""


@confined_machine
@pytest.mark.parametrize(
    ("code", "fits"),
    [
        (CHAMELEON, {"Exception"}),
        (CHAMELEON.replace("Exception", "KeyError"), {"Exception", "KeyError", "LookupError"}),
        ("class Missing(KeyError): pass\ndef solve(n): raise Missing(n)",
         {"Missing", "KeyError", "LookupError", "Exception"}),
        ("def solve(n): return {}[n]", {"KeyError", "LookupError", "Exception"}),
        ("class Missing(KeyError, ValueError): pass\ndef solve(n): raise Missing(n)",
         {"Missing", "KeyError", "LookupError", "Exception"}),
        ("import builtins\nbuiltins.ValueError = KeyError\ndef solve(n): raise KeyError(n)",
         {"KeyError", "LookupError", "Exception"}),
    ],
)  # fmt: skip
async def test_one_exception_is_not_every_exception_that_is_expected(code, fits):
    asked = ["Exception", "KeyError", "LookupError", "ValueError", "ZeroDivisionError", "OSError", "Missing"]
    passed = {name for name in asked if (await judge(code, [{"call": "solve", "args": [1], "raises": name}])).score}
    assert passed == fits


@confined_machine
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def other(n): return n", "KeyError"),
        ("raise ValueError", "ValueError"),
        ("def solve(n) return n", "SyntaxError"),
        ("def solve(n): return float('nan')", "ValueError"),
        ("def solve(n): return {n}", "TypeError"),
    ],
)
async def test_an_exception_is_expected_of_the_call_alone(code, name):
    verdict = await judge(code, [{"call": "solve", "args": [1], "raises": name}])
    assert verdict.score == 0
    assert f"outside of the call, it raised {name}" in verdict.explanation


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
    code = "import resource\ndef solve():\n    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))"
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
                code_passes(limits={"seconds": 2}),
                rollout("import time\ntime.sleep(60)", expected={"tests": [{"prints": ""}]}),
            )
        ).explanation
    )
    assert threading.active_count() <= before + 1


@confined_machine
@pytest.mark.parametrize("begins", ["```python3\n", "```Python\n", "```\r\n", "```py \r\n"])
async def test_a_fenced_block_is_code_however_it_names_python(begins):
    one = rollout(f"Here:\r\n{begins}print(3)\r\n```", expected={"tests": [{"prints": "3"}]})
    assert (await run_verifier(code_passes(limits=LIMITS), one)).score == 1


@pytest.mark.parametrize(
    "answer",
    [
        "1. Code:\n   ```python\n\n   def f(x):\n       return x*2\n   ```",
        "- Code:\n\n\t```\n\tdef f(x):\n\t\treturn x*2\n\t```",
        "   ```python\ndef f(x):\n  return x*2\n   ```",
        '```python\ndef f(x):\n  return x*2 if """a\n \nb""" == "a\\n \\nb" else 0\n```',
    ],
)
async def test_the_indentation_of_a_fenced_block_is_no_part_of_its_code(answer):
    one = rollout(answer, expected={"tests": [{"call": "f", "args": [2], "returns": 4}]})
    assert (await run_verifier(code_passes(limits=LIMITS), one)).score == 1


@pytest.mark.parametrize("answer", ["", "```python\na=1\n```\n```python\nb=1\n```", "```python\nnever closed"])
async def test_an_answer_without_one_piece_of_code_is_wrong(answer):
    one = rollout(answer, expected={"tests": TESTS})
    assert (await run_verifier(code_passes(needs=()), one)).score == 0


@pytest.mark.parametrize(
    "tests",
    [
        *(None, [], "solve", [{"call": "solve"}], [{"call": "solve", "returns": 1, "raises": "E"}], [{"stdin": "x"}]),
        *([{"prints": 3}], [{"stdin": 3, "prints": "3"}], [{"call": "solve", "args": "ab", "returns": 1}]),
        *([{"call": "solve", "kwargs": ["ab"], "returns": 1}], [{"call": 3, "returns": 1}]),
        [{"call": "solve", "raises": ["ValueError"]}],
    ],
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
