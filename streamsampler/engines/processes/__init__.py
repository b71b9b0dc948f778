"""Run workers in processes of this machine."""
