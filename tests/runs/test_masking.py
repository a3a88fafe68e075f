"""Keys and tokens are masked in what is kept, and what is none is left."""

from __future__ import annotations

import pytest

from penstock.runs.masking import masked, masked_reason, masked_words


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--api-key", "abc", "--lr", "1"], ["--api-key", "***", "--lr", "1"]),
        (["--wandb_api_key=abc"], ["--wandb_api_key=***"]),
        (["AWS_SECRET_ACCESS_KEY=abc/+=", "train"], ["AWS_SECRET_ACCESS_KEY=***", "train"]),
        (["-H", "Authorization: Bearer abc.def"], ["-H", "Authorization: Bearer ***"]),
        (["https://me:word@host/x"], ["https://***@host/x"]),
        (["sk-abcdefghijklmnopqrstuv"], ["***"]),
        (["ghp_abcdefghijklmnopqrstuvwxyz0123456789"], ["***"]),
        (["--key", "0123", "--key=abc", "-p", "word"], ["--key", "***", "--key=***", "-p", "***"]),
        (
            ["--password=p&ss", "--passphrase=a b", "--token=,x", "+hub.token=a;b"],
            ["--password=***", "--passphrase=***", "--token=***", "+hub.token=***"],
        ),
        (["-p", "0.5", "-p", "1e-3", "--keys", "a"], None),
        (["--max-tokens=512", "--tokenizer=gpt2", "--sort-key", "x", "key=value"], None),
        (["sh", "-c", "echo tokens: 3"], None),
    ],
)
def test_what_looks_like_a_secret_is_masked_in_words(words: list[str], kept: list[str] | None):
    assert list(masked_words(words)) == (words if kept is None else kept)


def test_a_value_of_a_secret_variable_is_masked_wherever_it_stands(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_SERVICE_TOKEN", "plainwords")
    assert masked("+url = 'http://host/plainwords/x'") == "+url = 'http://host/***/x'"
    assert masked('+    "password": "a b",\n') == '+    "password": "*** b",\n'


def test_a_secret_of_the_command_is_masked_in_what_a_script_says_of_its_end():
    command = ["train.py", "--key", "0123", "--lr", "0.1", "--token=a.b", "-p", ""]
    assert masked_reason("unrecognized arguments: --key 0123 --lr 0.1 (a.b, axb, 01234)", command) == (
        "unrecognized arguments: --key *** --lr 0.1 (***, axb, 01234)"
    )
    assert masked_reason("KeyError: 'token=abc'", ["train.py"]) == "KeyError: 'token=***'"
