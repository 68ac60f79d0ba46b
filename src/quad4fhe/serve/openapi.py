"""The OpenAPI description of the service, written by hand because bodies are octets without a schema."""

from __future__ import annotations

from typing import Any

from quad4fhe.layouts import LAYOUTS

_OCTETS = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}},
    "required": ["error"],
    "additionalProperties": False,
}
_MODEL = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "name": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"},
        "features": {"type": "integer", "minimum": 1},
        "outputs": {"type": "integer", "minimum": 1},
        "layouts": {"type": "array", "items": {"enum": list(LAYOUTS.names())}, "minItems": 1},
        "plans": {
            "type": "object",
            "description": "The SHA-256 of each layout's plan.",
            "additionalProperties": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        },
    },
    "required": ["id", "name", "features", "outputs", "layouts", "plans"],
}
_WORDS = {
    "400": "Not a request of this plan; the message says why.",
    "401": "A token is missing or wrong.",
    "403": "A server without tokens answers no page but its own.",
    "404": "No such model or layout.",
    "408": "The upload took too long.",
    "411": "No Content-Length.",
    "413": "Longer than the plan prescribes.",
    "415": "Not application/octet-stream, or compressed.",
    "421": "A server without tokens answers as 127.0.0.1 or localhost alone.",
    "429": "The queue is full, or clients with fewer places are waiting.",
    "503": "A worker was lost or there is no room; send the same request again.",
    "504": "The deadline passed.",
}
_ANYWHERE = ("403", "421")
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}


def _responses(ok: dict[str, Any], *codes: str) -> dict[str, Any]:
    out = dict(ok)
    for code in (*codes, *_ANYWHERE):
        out[code] = {"description": _WORDS[code], "content": {"application/json": {"schema": _ERROR}}}
        if code in ("429", "503"):
            out[code]["headers"] = _RETRY
    return out


def _json(what: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"200": {"description": what, "content": {"application/json": {"schema": schema}}}}


def _parameter(name: str, digits: int) -> dict[str, Any]:
    schema = {"type": "string", "pattern": f"^[0-9a-f]{{{digits}}}$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


def describe_api(tokens: bool) -> dict[str, Any]:
    """Return the description; with `tokens`, every route but /health needs one."""
    model = _parameter("model_id", 64)
    layout = {"name": "layout", "in": "query", "required": False, "schema": {"enum": list(LAYOUTS.names())}}
    body = {"required": True, "content": _OCTETS}
    upload = ("400", "401", "404", "408", "411", "413", "415", "429", "503", "504")
    counts = {"type": "object", "properties": {"workers": {"type": "integer"}, "busy": {"type": "integer"}}}
    models = {"type": "object", "properties": {"models": {"type": "array", "items": _MODEL}}, "required": ["models"]}
    unwell = {"503": {"description": "No worker is alive.", "content": {"application/json": {"schema": counts}}}}
    text = {"200": {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    reply = {"200": {"description": "A reply.", "content": _OCTETS}}
    part = {"200": {"description": "The graph that the plan names by its hash.", "content": _OCTETS}}
    paths: dict[str, Any] = {
        "/health": {
            "get": {"summary": "Are workers alive?", "security": [], "responses": _json("Yes.", counts) | unwell}
        },
        "/metrics": {"get": {"summary": "Counters for Prometheus", "responses": _responses(text, "401")}},
        "/models": {"get": {"summary": "List the models", "responses": _responses(_json("Models.", models), "401")}},
        "/models/{model_id}/plan": {
            "parameters": [model],
            "get": {
                "summary": "The parameters that client and server share",
                "parameters": [layout],
                "responses": _responses(_json("A plan.", {"type": "object"}), "401", "404"),
            },
        },
        "/models/{model_id}/features": {
            "parameters": [model],
            "get": {
                "summary": "The feature part, which the client runs on its raw inputs: an ONNX graph",
                "responses": _responses(part, "401", "404"),
            },
        },
        "/models/{model_id}/evaluate": {
            "parameters": [model],
            "post": {
                "summary": "Evaluate an encrypted request",
                "requestBody": body,
                "responses": _responses(reply, *upload),
            },
        },
    }
    out: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "quad4fhe", "version": "1", "description": "Encrypted inference; see SECURITY.md."},
        "paths": paths,
    }
    if tokens:
        out["components"] = {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
        out["security"] = [{"token": []}]
    return out
