"""Value turns by playing on from them."""
