from eval.page import short_names, table

RUN = "run:" + "0123456789abcdef" * 2


def test_names_are_shortened_where_that_tells_them_apart() -> None:
    names = ["/a/b/one", "/a/c/two", f"{RUN}@3", "models:/m@champion"]
    assert list(short_names(names).values()) == ["one", "two", "run:01234567@3", names[-1]]
    same = ["/a/b/one", "/a/c/one", "/a/two"]
    assert short_names(same) == {same[0]: same[0], same[1]: same[1], same[2]: "two"}


def test_numbers_stand_on_the_right_below_their_heading_and_text_is_no_markup() -> None:
    markup = table(("what", "how <many>"), [("a & b", 3)])
    assert '<th>what</th><th class="n">how &lt;many&gt;</th>' in markup
    assert '<td>a &amp; b</td><td class="n">3</td>' in markup
    assert "<tbody></tbody>" in table(("what",), [])
