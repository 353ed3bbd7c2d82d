"""What the adapters of bot frameworks share: records under the claim of a handler, retries."""
