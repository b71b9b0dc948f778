"""How trajectories of several agents are run: by the loops for one agent, whose agent and recorder they replace.

`Players` stand where the agent stands: their `get_action` takes a dict of observations and returns a dict of actions.
`JointRecorder` stands where the recorder stands, and sorts what it is given into one trajectory for each agent, by
policy. So hooks, drops, timers, abandoning and checks are those of one agent.
"""
