"""Markup as a browser reads it, and a text that would break out of it."""

from html.parser import HTMLParser

EVIL = '<img src=x onerror="alert(1)">${1}</textarea></script>{{7*7}}`'


class Seen(HTMLParser):
    """Elements, their attributes, and the text of a document."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.text += data


def harmless(html):
    seen = Seen(html)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert "${" not in html and "{{" not in html
    return seen
