"""The cluster token: drawn fresh, compared whole, read only from a file that is private."""

import pytest

from baton.cluster.tokens import TokenError, draw_token, read_token_file, same_token


def test_tokens_differ_and_equal_only_themselves():
    token = draw_token()
    assert len(token) >= 32
    assert same_token(token, token)
    assert not same_token(draw_token(), token)
    assert not same_token(token + "x", token)


def test_no_token_lets_nobody_in():
    assert not same_token("", "")


@pytest.mark.parametrize(("mode", "text", "reason"), [(0o644, "t", "0644"), (0o620, "t", "0620"), (0o600, " \n", "empty")])
def test_a_file_that_others_may_read_or_that_is_empty_is_refused(tmp_path, mode, text, reason):
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(TokenError, match=reason):
        read_token_file(str(file))


def test_a_missing_file_is_refused_by_its_cause(tmp_path):
    with pytest.raises(TokenError, match="No such file"):
        read_token_file(str(tmp_path / "none"))
