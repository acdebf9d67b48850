"""Files are replaced in one move, or stay as they were."""

import pytest

from turnwise.files import replacing, write_text


def test_a_file_is_replaced_in_one_move(tmp_path):
    path = tmp_path / "told.json"
    write_text(path, "old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_what_could_not_be_written_leaves_nothing(tmp_path, error):
    path = tmp_path / "told.json"
    write_text(path, "old")

    def fail():
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
