"""What it is trained on: text, its tokens, the rows cut from them, and who gets which rows of a step."""
