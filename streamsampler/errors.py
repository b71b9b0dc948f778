"""All exceptions of this package.

::

    SamplerError
    ├── UsageError (ValueError)        an argument has an impossible value or type
    │   ├── UnknownArgumentError       a call has no argument of that name (also a TypeError); suggests near names
    │   ├── UnknownEnvironmentError    no environment has that id; suggests near ids
    │   └── UnknownAgentError          no agent has that name
    ├── DataError (ValueError)         data does not fit its space or its batch
    │   ├── ObservationError           an observation differs from its space in shape or dtype
    │   └── ActionError                an action is outside its space
    ├── StorageError (ValueError)      a file holds no trajectory batch, or data cannot be stored
    │   ├── DamagedShardError          a shard is damaged, missing or of another run
    │   └── UnwritableInfoError        no file can hold these infos; names them
    ├── SerializationError             an agent, an environment or an update cannot be pickled
    ├── ResourceLimitError (OSError)   the system grants this process fewer descriptors than its workers need
    ├── ClosedError                    a call after close
    ├── ConcurrentCallError            a call during another call
    ├── WorkerError                    a worker's task failed
    │   ├── RolloutError               user code raised in a worker; its traceback is the cause
    │   ├── NotReproducibleError       a trajectory depends on more than its seed; see `check` of the samplers
    │   ├── WorkerDiedError            a worker process ended without an order
    │   └── WorkerHungError            a worker made no progress, and was killed
    └── ProtocolError                  the state machine forbids a message: a bug in this package
"""

from streamsampler.core.errors import *  # noqa: F403
from streamsampler.core.errors import __all__ as __all__
