"""Say where the adapter for slime went."""

from turnwise.integrations.removed import refuse

refuse("slime")
