"""Programs that tokenize the text of a job before it trains. They use no accelerator."""
