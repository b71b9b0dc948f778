"""PPO on this library, on vector environments and with Stable-Baselines3."""
