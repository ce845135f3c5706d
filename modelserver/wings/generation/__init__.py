"""Generation: a model that generates, its engine, its steps and the call Generate; `model.task` generate and auto."""
