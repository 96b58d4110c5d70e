"""From prompts to hidden states: what a drafter is trained on."""
