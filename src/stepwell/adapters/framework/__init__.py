"""What the adapters of bot frameworks share: records and conversations under the claim of a handler, retries."""
