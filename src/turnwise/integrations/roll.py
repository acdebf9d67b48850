"""Say where the adapter for ROLL went."""

from turnwise.integrations.removed import refuse

refuse("ROLL")
