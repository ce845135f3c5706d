"""Generated code of the contracts; `.ci/proto` writes it."""
