"""What people have as prompts becomes checked tasks, or one error that says where and how to mend it."""

import json
import subprocess
import sys

import pytest

from sdk.errors import ConfigError
from sdk.records import Message, Task, ToolCall
from sdk.tasks import load_tasks

DEEP = "[" * 50_000 + "]" * 50_000


def jsonl(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_strings_dicts_records_and_paths_mix_in_one_list(tmp_path):
    path = jsonl(tmp_path / "more.jsonl", "from a file", {"prompt": "also from a file"})
    tasks = load_tasks(["a string", {"prompt": "a dict", "tags": {"tier": "2"}}, Task(prompt="a record"), path])
    assert [t.prompt for t in tasks] == ["a string", "a dict", "a record", "from a file", "also from a file"]
    assert tasks[1].tags == {"tier": "2"}


@pytest.mark.parametrize("lone", ["Where is order 4417?", {"prompt": "Where is order 4417?"}])
def test_a_lone_prompt_is_one_task(lone):
    assert [t.prompt for t in load_tasks(lone)] == ["Where is order 4417?"]


def test_a_generator_is_read_once():
    assert len(load_tasks(f"prompt {n}" for n in range(3))) == 3


def test_jsonl_skips_blank_lines_and_keeps_line_separators_inside_strings(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes('\ufeff{"prompt": "one"}\r\n\r\n"two\u2028lines"\n'.encode())
    assert [t.prompt for t in load_tasks(str(path))] == ["one", "two\u2028lines"]


def test_a_json_file_holds_a_list(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text(json.dumps([{"prompt": "one", "expected": {"answer": None}}, "two"]))
    tasks = load_tasks(path)
    assert tasks[0].expected == {"answer": None}
    path.write_text('{"prompt": "one"}')
    with pytest.raises(ConfigError, match="holds a list of tasks"):
        load_tasks(path)


def test_csv_cells_are_json_or_plain_and_columns_may_name_an_entry(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(
        "id,prompt,expected.answer,expected.calls,setup,tags.tier,later_turns,family\n"
        '007,"Where is it,\n and when?",shipped,"[{""name"": ""get""}]","{""seed"": 7}",2,and now?,3\n'
        "8,12,12,,,,,\n"
    )
    first, second = load_tasks(path)
    assert first == Task(
        id="007",
        prompt="Where is it,\n and when?",
        expected={"answer": "shipped", "calls": [{"name": "get"}]},
        setup={"seed": 7},
        tags={"tier": "2"},
        later_turns=["and now?"],
        family="3",
    )
    assert second == Task(id="8", prompt="12", expected={"answer": 12})


def test_a_plain_expected_cell_is_the_answer(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text('prompt,expected\na,shipped\nb,"{""state"": {}}"\nc,NaN\n')
    assert [t.expected for t in load_tasks(path)] == [{"answer": "shipped"}, {"state": {}}, {"answer": "NaN"}]


@pytest.mark.parametrize("text", ["prompt\n{}\n", "{}\n", "prompt,id\n1,{}\n"])
def test_a_csv_cell_that_is_too_long_is_named_as_such(tmp_path, text):
    (tmp_path / "tasks.csv").write_text(text.format("x" * 200_000))
    with pytest.raises(ConfigError, match=r"line \d: a cell has more than 131,072 characters; give"):
        load_tasks(tmp_path / "tasks.csv")


@pytest.mark.parametrize("above", ["", "sep={}\r\n"], ids=["plain", "Excel's first line"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_of_a_spreadsheet_is_read_with_its_separator_and_without_emptied_rows(tmp_path, separator, above):
    lines = ["prompt, expected.answer ,setup.seed", "one,a,7", ",,", "two,b,8", " ,,"]
    path = tmp_path / "tasks.csv"
    path.write_text(
        "\ufeff" + above.format(separator) + "".join(line.replace(",", separator) + "\r\n" for line in lines),
        encoding="utf-8",
    )
    tasks = load_tasks(path)
    assert [(t.prompt, t.expected, t.setup) for t in tasks] == [
        ("one", {"answer": "a"}, {"seed": 7}),
        ("two", {"answer": "b"}, {"seed": 8}),
    ]


def test_booleans_of_python_and_of_spreadsheets_are_booleans(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text(
        "prompt,expected.answer,tags.seen\nPaid 1?,True,True\nPaid 2?,FALSE,no\nPaid 3?,true,no\nSay it.,True?,no\n"
    )
    tasks = load_tasks(path)
    assert [task.expected["answer"] for task in tasks] == [True, False, True, "True?"]
    assert tasks[0].tags["seen"] == "True"


@pytest.mark.parametrize("cell", ["{'answer': 7}", '"{""answer"": 7"', "\"['a', 'b']\""])
@pytest.mark.parametrize("column", ["expected", "expected.answer", "setup.orders"])
def test_a_csv_cell_that_begins_like_json_and_is_not_is_no_text(tmp_path, column, cell):
    path = tmp_path / "tasks.csv"
    path.write_text(f"prompt,{column}\nHow many?,{cell}\n")
    with pytest.raises(ConfigError, match=f"line 2: {column} is .* begins like JSON and is not"):
        load_tasks(path)


def test_a_csv_cell_that_is_a_name_with_an_e_is_no_number(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text("prompt,expected.answer\nWhich lot?,12E4\nHow many?,1.2e+05\nHow much?,1200.5\n", encoding="utf-8")
    assert [task.expected["answer"] for task in load_tasks(path)] == ["12E4", 120000.0, 1200.5]


def test_a_csv_cell_with_a_number_that_json_has_not_is_a_text(tmp_path):
    path = tmp_path / "tasks.csv"
    path.write_text('prompt,expected.answer\nHow many?,1.5e400\nHow much?,NaN\n"{""a"": 1, ""a"": 2}",7\n')
    tasks = load_tasks(path)
    assert [task.expected["answer"] for task in tasks] == ["1.5e400", "NaN", 7]
    assert tasks[2].prompt == '{"a": 1, "a": 2}'  # a request may be any text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("question,answer\na,b\n", r"tasks\.csv, line 1: .*one must be 'prompt'"),
        ("prompt,prompt\na,b\n", "must be different"),
        ("prompt,id\na,1\nb, with a comma,2\n", r"tasks\.csv, line 3: 3 cells, but the header has 2"),
        ("prompt,expekted\na,1\n", r"tasks\.csv, line 2: unknown field 'expekted'; did you mean 'expected'\?"),
        ("prompt,answer\na,1\n", r"unknown field 'answer'; did you mean expected\.answer\? In CSV .* in JSON"),
        ("prompt,setup_seed\na,1\n", r"unknown field 'setup_seed'; did you mean setup\.seed\?"),
        ("prompt,split\na,train\n", r"unknown field 'split'; did you mean tags\.split\?"),
        ("prompt,calls\na,f()\n", r"unknown field 'calls'; .* by `toolbake solve`"),
        ("prompt;id\na;b;1\n", r"line 2: 3 cells, but the header has 2; quote cells that hold semicolons"),
        ("sep=;\nprompt;id\na;b;1\n", r"line 3: 3 cells, but the header has 2; quote cells that hold semicolons"),
        ("sep=;\nquestion\na\n", r"tasks\.csv, line 2: .*one must be 'prompt'"),
        ("prompt,setup\na,{broken\n", r"line 2: setup is '\{broken', which is not JSON"),
        ("prompt,id\n,1\n", r"line 2: prompt.* is '': the prompt is empty"),
        ("prompt\n", "holds no task"),
        ('prompt\n"open\n', "not CSV"),
        pytest.param(f"prompt,setup\na,{DEEP}\n", r"line 2: nested too deeply to be read", id="nested"),
        ('prompt,expected,expected.answer\na,"{""answer"": 1}",2\n', "both set 'answer'"),
        ('prompt,expected.answer,expected\na,1,"{""answer"": 1}"\n', "both set 'answer'"),
        ('prompt,setup\na,"{""seed"": 1, ""seed"": 2}"\n', r"line 2: the key 'seed' occurs twice; keep one"),
    ],
)
def test_a_bad_csv_file_names_line_and_fix(tmp_path, text, message):
    path = tmp_path / "tasks.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_tasks(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"line 2: not JSON: .* at column 2, where 'b' stands; write JSON there"),
        (
            '{"prompt": "b"} {}',
            r"line 2: not JSON: Extra data at column 17, .*; leave out what follows the first value",
        ),
        ('{"prompt": "b', r"line 2: not JSON: Unterminated string at column 12, .*; end the text with a double quote"),
        ('{"prompt": "b", "expected": {"answer": NaN}}', r"line 2: NaN is not a JSON value"),
        ('{"prompt": "b", "expected": {"answer": 1e999}}', r"line 2: 1e999 is out of range for a number"),
        pytest.param(f'{{"prompt": {DEEP}}}', r"line 2: nested too deeply to be read", id="nested"),
        pytest.param('{"prompt": ' + "9" * 5000 + "}", r"line 2: Exceeds the limit", id="digits"),
        ('{"prompt": "b", "prompt": "c"}', r"line 2: the key 'prompt' occurs twice"),
        ('{"promt": "b"}', r"line 2: unknown field 'promt'; did you mean 'prompt'\?"),
        ('{"prompt": "b", "status": "x"}', r"unknown field 'status'.*under 'expected' or 'tags'"),
        ('{"id": "b"}', r"line 2: has no 'prompt'"),
        ('{"prompt": "  "}', r"line 2: prompt.*the prompt is empty"),
        ('""', r"line 2: prompt.*the prompt is empty"),
        ('{"prompt": []}', r"line 2: prompt.*the prompt is empty"),
        ("12", r"line 2 is 12 \(int\)"),
        ('{"prompt": "b", "tags": {"tier": 2}}', r"line 2: tags.tier is 2"),
        ('{"prompt": [{"role": "user", "contnet": "b"}]}', r"line 2, prompt\[0\]: unknown field 'contnet'.*'content'"),
        ('{"prompt": [{"role": "bot"}]}', r"prompt\.0\.role is 'bot': Input should be 'system', 'user', 'assistant'"),
        ('{"prompt": 7}', r"line 2: prompt is 7; it must be a text, or a list of messages"),
        ('{"prompt": "b", "expected": "done"}', r"line 2: expected is 'done'; it must be an object, .*answer"),
        ('{"prompt": "b", "setup": 7}', r"line 2: setup is 7; it must be an object, .*seed"),
        ('{"prompt": ["b"]}', r"prompt\[0\] is 'b'; a message is a dict"),
        pytest.param(
            f'{{"prompt": ["{5000 * "b"}"]}}', r"is 'b{199}\.\.\. \(5002 characters\); a message", id="long message"
        ),
        ('{"prompt": "b", "demonstration": [{"role": "assistant", "tool_calls": [3]}]}', r"tool_calls\[0\] is 3"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path, line, message):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(ConfigError, match=message) as caught:
        load_tasks(path)
    assert str(path) in str(caught.value)


def test_messages_may_have_openais_form():
    demonstration = [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": '{"id": 3}'}}],
        }
    ]
    (task,) = load_tasks({"prompt": "a", "demonstration": demonstration})
    assert task.demonstration == [
        Message(role="assistant", tool_calls=[ToolCall(id="call_0", name="get", arguments={"id": 3})])
    ]


@pytest.mark.parametrize("field", ["prompt", "demonstration"])
def test_reasoning_may_have_the_name_that_endpoints_give_it(field):
    thought = {"role": "assistant", "content": "Hi.", "reasoning_content": "Hm."}
    (task,) = load_tasks({"prompt": "a", field: [thought]})
    assert getattr(task, field) == [Message(role="assistant", content="Hi.", reasoning="Hm.")]


@pytest.mark.parametrize("empty", [[], {}, "", "   ", [""], iter(())])
def test_nothing_to_do_is_an_error(empty):
    with pytest.raises(ConfigError, match=r"no task|no 'prompt'|prompt is empty"):
        load_tasks(empty)


@pytest.mark.parametrize("wrong", [None, 3, b"bytes", [None], [3]])
def test_what_is_no_prompt_is_refused_with_its_type(wrong):
    with pytest.raises(ConfigError, match=r"NoneType|int|bytes"):
        load_tasks(wrong)


def test_exact_repeats_and_clashing_ids_name_both_places():
    with pytest.raises(ConfigError, match=r"prompts\[2\] repeats prompts\[0\]"):
        load_tasks(["a", "b", "a"])
    with pytest.raises(ConfigError, match=r"prompts\[1\] and prompts\[0\] have the same id 'x' but differ in prompt"):
        load_tasks([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}])
    with pytest.raises(ConfigError, match="differ in expected"):
        load_tasks([{"prompt": "a", "expected": {"answer": 1}}, {"prompt": "a", "expected": {"answer": 2}}])


def test_missing_and_unreadable_files_say_so(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl', and there is no such file"):
        load_tasks(str(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ConfigError, match="looks like a path"):
        load_tasks("tasks.jsnl")
    with pytest.raises(ConfigError, match="looks like a path"):
        load_tasks("my tasks.csv")
    (tmp_path / "tasks.yaml").touch()
    with pytest.raises(ConfigError, match=r"tasks\.yaml' looks like a path, but tasks are not read from such a file"):
        load_tasks(str(tmp_path / "tasks.yaml"))
    with pytest.raises(ConfigError, match=r"cannot read \.txt as tasks"):
        load_tasks(tmp_path / "tasks.txt")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.json', a folder"):
        load_tasks(tmp_path / "folder.json")
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'"one"\n"caf\xe9"\n')
    with pytest.raises(ConfigError, match=r"latin\.jsonl, line 2: not UTF-8"):
        load_tasks(latin)


def test_a_file_name_among_prompts_is_taken_for_a_mistake(tmp_path):
    path = jsonl(tmp_path / "tasks.jsonl", "a")
    with pytest.raises(ConfigError, match=r"give pathlib\.Path"):
        load_tasks([str(path)])
    assert load_tasks(["Read config.json and say what is in it.json"])[0].prompt.startswith("Read")


def test_parquet_and_datasets_give_the_same_tasks(tmp_path):
    import datasets

    rows = {
        "prompt": ["a", "b"],
        "expected": [{"answer": "x"}, {"count": 3}],
        "demonstration": ['[{"role": "assistant", "content": "x"}]', None],
    }
    dataset = datasets.Dataset.from_dict(rows)
    dataset.to_parquet(str(tmp_path / "tasks.parquet"))
    expected = [
        Task(prompt="a", expected={"answer": "x"}, demonstration=[Message(role="assistant", content="x")]),
        Task(prompt="b", expected={"count": 3}),
    ]
    assert load_tasks(dataset) == expected
    assert load_tasks(tmp_path / "tasks.parquet") == expected
    with pytest.raises(ConfigError, match=r"splits \['train'\]"):
        load_tasks(datasets.DatasetDict({"train": dataset}))


def test_nulls_that_a_table_may_have_filled_in_are_refused():
    import datasets

    rows = [
        {"prompt": "a", "expected": {"calls": [{"name": "get", "arguments": {"id": 1}}]}},
        {"prompt": "b", "expected": {"calls": [{"name": "set", "arguments": {"value": 2}}]}},
    ]
    with pytest.raises(ConfigError, match=r"row 0: expected\.calls\[0\]\.arguments\.value is null.*as JSON text"):
        load_tasks(datasets.Dataset.from_list(rows))


def test_messages_of_a_prompt_may_be_json_text_in_a_table():
    import datasets

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where is it?"}]
    dataset = datasets.Dataset.from_dict({"prompt": [json.dumps(messages), '["a", "b"]', "c"]})
    prompts = [task.prompt for task in load_tasks(dataset)]
    assert prompts == [[Message(**message) for message in messages], '["a", "b"]', "c"]


def test_a_broken_parquet_file_and_bad_json_text_are_named(tmp_path):
    import datasets

    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing")
    with pytest.raises(ConfigError, match=r"broken\.parquet: not a Parquet file"):
        load_tasks(broken)
    with pytest.raises(ConfigError, match=r"row 0: expected is the text '\{oops', which is not JSON"):
        load_tasks(datasets.Dataset.from_dict({"prompt": ["a"], "expected": ["{oops"]}))
    with pytest.raises(ConfigError, match="row 0: nested too deeply to be read"):
        load_tasks(datasets.Dataset.from_dict({"prompt": ["a"], "expected": [DEEP]}))
    with pytest.raises(ConfigError, match="row 0: the key 'answer' occurs twice"):
        load_tasks(datasets.Dataset.from_dict({"prompt": ["a"], "expected": ['{"answer": 1, "answer": 2}']}))
    with pytest.raises(ConfigError, match=r"expected is the text .*: NaN is not a JSON value"):
        load_tasks(datasets.Dataset.from_dict({"prompt": ["a"], "expected": ['{"answer": NaN}']}))


def test_loading_imports_nothing_heavy():
    code = (
        "import sys, sdk.tasks; sdk.tasks.load_tasks(['a']); print({'datasets', 'pyarrow', 'torch'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
