"""All exceptions of this package.

::

    SamplerError
    ├── UsageError (ValueError)        an argument that cannot work
    │   ├── UnknownArgumentError       no argument of that name (also a TypeError); near ones are suggested
    │   ├── UnknownEnvironmentError    no environment of that id; near ids are suggested
    │   └── UnknownAgentError          no agent of that name
    ├── DataError (ValueError)         data that does not fit its space or its batch
    │   ├── ObservationError           an observation of another shape or dtype than its space
    │   └── ActionError                an action outside its space
    ├── StorageError (ValueError)      a file that is no trajectory batch, or data that cannot be stored
    │   ├── DamagedShardError          a shard that is damaged, missing or of another run
    │   └── UnwritableInfoError        infos that no file can hold; names them
    ├── SerializationError             an agent, an environment or an update that cannot be pickled
    ├── ResourceLimitError (OSError)   the system allows this process fewer descriptors than the workers need
    ├── ClosedError                    a call after close
    ├── ConcurrentCallError            a call while another one runs
    ├── WorkerError                    what a worker was asked to do failed
    │   ├── RolloutError               user code raised in a worker; its traceback is the cause
    │   ├── NotReproducibleError       a trajectory depends on more than its seed; see `check` of the samplers
    │   ├── WorkerDiedError            a worker process ended without being asked to
    │   └── WorkerHungError            a worker made no progress, and was killed
    └── ProtocolError                  a message that the state machine does not allow: a bug in this package
"""

from streamsampler.core.errors import *  # noqa: F403
from streamsampler.core.errors import __all__ as __all__
