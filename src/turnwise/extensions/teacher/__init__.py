"""Let the policy of another run teach: score what the student says, token by token."""
