"""`/docs`: every request in one page of plain HTML, made from the OpenAPI description.

It loads nothing from elsewhere and runs no script: looking something up does not leave the machine either. Everything
that is shown is escaped. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:1rem/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.4rem .8rem .4rem 0;"
    "border-bottom:1px solid #8886}code{white-space:nowrap}"
)
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Of the page's content: its own style and nothing else."""


def reference_page(described: Mapping[str, Any]) -> str:
    """One row a request: method and path, what it does, and the fields of its body.

    >>> page = reference_page({"paths": {"/v1/<x>": {"get": {"description": "Reads."}}}})
    >>> "<code>GET /v1/&lt;x&gt;</code>" in page and "Reads." in page
    True
    """
    rows = [
        _row(method, path, operation)
        for path, operations in described.get("paths", {}).items()
        for method, operation in operations.items()
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Hone: requests</title><style>{STYLE}</style><h1>Requests</h1>"
        "<p>Agents call <code>/v1/chat/completions</code>, <code>/v1/completions</code> and <code>/v1/models</code> as "
        "they would call OpenAI. For programs this page is <a href='/openapi.json'>/openapi.json</a>.</p>"
        "<table><thead><tr><th scope=col>Request<th scope=col>What it does<th scope=col>Fields of its body</thead>"
        f"<tbody>{''.join(rows)}</tbody></table></html>"
    )


def _row(method: str, path: str, operation: Mapping[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    fields = ", ".join(content.get("schema", {}).get("properties", {}))
    told = str(operation.get("description") or operation.get("summary") or "")
    cells = (f"<code>{escape(method.upper())} {escape(path)}</code>", escape(told), escape(fields))
    return f"<tr><td>{'<td>'.join(cells)}</tr>\n"
