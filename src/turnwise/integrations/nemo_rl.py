"""Say where the adapter for NeMo-RL went."""

from turnwise.integrations.removed import refuse

refuse("NeMo-RL")
