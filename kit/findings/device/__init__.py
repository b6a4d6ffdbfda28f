"""What the notebooks add on a GPU: the same questions, the same equality first, the device's own measured bounds."""
