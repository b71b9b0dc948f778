"""Worker processes of the model: the workers' state machine, between two queues that hold what was sent."""

from streamsampler.core.times import Times
from streamsampler.protocol.messages import Checked, Exit, Failure, Phase, Report, Start, Stop
from streamsampler.protocol.progress import Progress
from streamsampler.protocol.states import WorkerSide


def length_of(version, index):
    return 1 + (version + index) % 2


def seconds_of(worker, n_timesteps, slowness):
    # So long that the shortest ticket is of one trajectory.
    return 0.005 * n_timesteps * (slowness if worker == 0 else 1.0)


class Process:
    """One worker process, from its start to its death: what `workers.loop.WorkerLoop` does, and nothing else.

    Args:
        number: The worker number.
        capacity: How many answers the way back has room for.
        slowness: How many times as long as the others the first worker takes.
        lanes: Whether workers run lanes, and say so when they answer.
    """

    def __init__(self, number, capacity, slowness, lanes):
        self.number, self.capacity, self.slowness, self.lanes = number, capacity, slowness, lanes
        self.side = WorkerSide()
        self.commands = []  # each with the agent version whose updates a `Start` carries
        self.answers = []
        self.is_alive, self.is_last = True, False  # whether no other process can be started in its place for now
        self.in_hand = None  # a ticket that was begun when it was not abandoned yet
        self.agent_version = 0
        self.is_to_check = False
        self.progress = Progress(0, 0, None, Phase.WAITING)

    @property
    def first_ticket(self):
        tickets = self.side._tickets
        return tickets[0] if tickets else None

    def send(self, message, agent_version):
        """Take a message on its way; a dead process never reads it."""
        if not self.is_alive:
            return
        self.commands.append((message, agent_version))
        messages = [message for message, _ in self.commands]
        # The bounds that let a send never wait.
        assert sum(not isinstance(message, Stop | Exit) for message in messages) <= self.capacity
        assert sum(isinstance(message, Stop) for message in messages) <= 2
        assert sum(isinstance(message, Exit) for message in messages) <= 1

    def answer(self, answer, made_under=None):
        self.answers.append((answer, made_under))
        assert len(self.answers) <= self.capacity, "the way back is bounded"

    def hear(self, *, refuses=False):
        """Receive a message; refuse the updates that it carries if the model says so."""
        message, agent_version = self.commands.pop(0)
        abandoned = self.side.receive(message)
        match message:
            case Exit():
                self.is_alive = False
            case Start(version=version, check=check):
                self.progress = Progress(version, 0, None, Phase.AGENT_UPDATE)
                self.agent_version, self.is_to_check = agent_version, check
                if refuses:
                    self.fail(None, Phase.AGENT_UPDATE)
        self.give_up(abandoned)

    def begin(self, oldest):
        """Take a ticket: it is in hand, or given up."""
        ticket = self.first_ticket
        if oldest > ticket.version:
            self.run(oldest)
        else:
            self.in_hand = ticket
            self.progress = Progress(ticket.version, 0, ticket.indices[-1], Phase.STEP)

    def run(self, oldest):
        """Answer the ticket in hand; a message that arrived later is not received before."""
        ticket = self.side.next_ticket()
        assert ticket is not None
        self.side.before_answer()
        if oldest > ticket.version:
            self.give_up((ticket,))
        else:
            lengths = tuple(length_of(self.agent_version, index) for index in ticket.indices)
            seconds = Times(step=seconds_of(self.number, sum(lengths), self.slowness))
            checked = Checked(3, 3) if self.is_to_check else None
            self.is_to_check = False
            report = Report(
                ticket, n_trajectories=len(lengths), seconds=seconds, checked=checked, runs_lanes=self.lanes
            )
            self.answer(report, (self.agent_version, lengths))
        self._put_down()

    def fail(self, trajectory, phase=Phase.STEP, kind="builtins.OSError"):
        """Answer the next ticket with a failure, and give up the others."""
        ticket = self.side.next_ticket()
        others = self.side.fail()
        self.answer(Failure(ticket, phase, trajectory, "boom", "", None, (kind,), runs_lanes=self.lanes))
        self.give_up(others)
        self._put_down()

    def give_up(self, tickets):
        for ticket in tickets:
            self.answer(Report(ticket, abandoned=True))

    def _put_down(self):
        self.in_hand = None
        self.progress = Progress(self.progress.version, 0, None, Phase.WAITING)

    def die(self):
        self.is_alive = False
        self.commands.clear()
        self.in_hand = None
