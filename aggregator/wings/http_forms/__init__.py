"""Other forms of embeddings over HTTP: Cohere's, and Voyage's contextualized embeddings."""
