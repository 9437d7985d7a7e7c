"""What a delivery is: a bill of materials with the model as component, and the card that is made of it."""
