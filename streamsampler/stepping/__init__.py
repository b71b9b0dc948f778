"""Step environments from your own process.

`EnvManager` has them in worker processes, `SerialEnvManager` in this process; the data are the same. `vector_env()` and
`sb3_env()` give them the interfaces of Gymnasium and Stable-Baselines3. The guide is `streamsampler/docs/stepping.md`.
"""
