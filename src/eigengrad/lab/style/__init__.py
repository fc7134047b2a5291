"""Pictures in the colours or the style of others, by whitening and colouring."""
