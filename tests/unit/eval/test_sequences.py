from fakes.replays import KNOWN, answer_row

from eval.sequences import spread


def test_rows_are_left_out_evenly() -> None:
    rows = [answer_row([KNOWN] * 10, name=str(number)) for number in range(6)]
    assert [row.id for row in spread(rows, 60)] == ["0", "1", "2", "3", "4", "5"]
    assert [row.id for row in spread(rows, 20)] == ["0", "3"]
    assert [row.id for row in spread(rows, 1)] == ["0"]
