"""What the engines share that multiply: axes of a tile, reading a body, gathers, split-K, 3xTF32."""
