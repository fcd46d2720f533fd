"""How kernels are compiled, narrow their numbers and share their rows among threads."""
