"""What a report says about its tokens: warnings, and metrics by class of token."""
