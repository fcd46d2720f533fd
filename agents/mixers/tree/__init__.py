"""Tree attention in the place of a trained model's softmax attention: Menet et al."""
