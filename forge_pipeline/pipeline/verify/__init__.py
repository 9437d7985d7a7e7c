"""What is asked of a delivery beside sound signatures: that it obeys, that others agree, and that it builds again."""
