"""The paper's experiments: recipes, training, measured runs, and the tables and pictures made of them."""
