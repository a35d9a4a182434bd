"""Text in, token batches out: the `prepare` command and the dataset that `train` reads."""
