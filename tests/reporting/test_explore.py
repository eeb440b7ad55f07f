"""The explorer's page, without a browser; test_browser_explorer.py opens it."""

import re

from experiments import explore


def test_the_page_has_one_script_and_fetches_nothing(tmp_path):
    path = explore.write(tmp_path / "new")
    text = path.read_text(encoding="utf-8")
    assert text.count("<script>") == 1 and text.count('<svg id="') == 6
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert {*re.findall(r'href="#([^"]+)"', text)} <= {*re.findall(r' id="([^"]+)"', text)}
