"""The routes over HTTP as an OpenAPI document, and as a page for people: `/openapi.json` and `/docs`."""
