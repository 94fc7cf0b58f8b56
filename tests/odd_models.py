"""Networks as people bring them: written down because each once ended in a traceback, in silence or in a wrong number."""

import sys
import threading

import torch
from torch import nn


class Flat(nn.Module):
    """A plain small network, the start of the others."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        return self.read(self.last(torch.tanh(self.first(x.flatten(1)))))

    def read(self, y):
        return y


def flat():
    return Flat()


def scripted():
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)))


def traced():
    return torch.jit.trace(nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.zeros(1, 1, 4, 4))


def old_weight_norm():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(16, 3)))


def new_weight_norm():
    return nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(16, 3)))


def weight_norm_over_all():
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(16, 8), dim=None), nn.Tanh(), norm(nn.Linear(8, 3), dim=1))


def rrelu():
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.RReLU(), nn.Linear(8, 3))


def holds_a_lock():
    model = Flat()
    model.lock = threading.Lock()
    return model


def holds_an_open_file():
    model = Flat()
    model.log = sys.__stderr__
    return model


def holds_a_generator():
    model = Flat()
    model.numbers = (number for number in range(3))
    return model


def sparse_parameter():
    model = Flat()
    model.table = nn.Parameter(torch.eye(3).to_sparse())
    return model


def parameter_without_numbers():
    model = Flat()
    model.nothing = nn.Parameter(torch.zeros(0, 4))
    return model


def on_meta():
    with torch.device("meta"):
        return Flat()


def quantised():
    return torch.ao.quantization.quantize_dynamic(Flat(), {nn.Linear}, dtype=torch.qint8)


def without_parameters():
    return nn.Sequential(nn.Flatten(), nn.ReLU())


def all_frozen():
    return Flat().requires_grad_(False)


def half_precision():
    return Flat().half()


class Reads(Flat):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def read(self, y):
        return self.how(y)


def gives_bool():
    return Reads(lambda y: y > 0)


def gives_complex():
    return Reads(lambda y: torch.complex(y, y))


def gives_one_number():
    return Reads(lambda y: y.sum())


def gives_nothing_to_read():
    return Reads(lambda y: y[:, :0])


def gives_no_rows():
    return Reads(lambda y: y[:0])


def gives_sparse():
    return Reads(lambda y: y.to_sparse())


def gives_transposed():
    return Reads(lambda y: y.T)


def gives_tuple():
    return Reads(lambda y: (y, y))


def gives_list():
    return Reads(lambda y: [y])


def gives_dict():
    return Reads(lambda y: {"scores": y})


def gives_integers():
    return Reads(lambda y: y.argmax(1))


def gives_detached():
    return Reads(lambda y: y.detach())


def gives_none():
    return Reads(lambda y: None)


def gives_text():
    return Reads(lambda y: "cat")


def gives_numpy():
    return Reads(lambda y: y.detach().numpy())


def gives_nan():
    return Reads(lambda y: y * float("nan"))


def gives_infinity():
    return Reads(lambda y: y / 0)


def gives_constant():
    return Reads(lambda y: torch.ones_like(y))


class CallsRReLU(Flat):
    def forward(self, x):
        return self.last(nn.functional.rrelu(self.first(x.flatten(1))))


def rrelu_as_a_function():
    return CallsRReLU()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 8, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = x.reshape(len(x), 4, 4)
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.full((len(x),), 4), batch_first=True)
        _, (hidden, _) = self.lstm(packed)
        return self.last(hidden[-1])


def packed_lstm():
    return Packed()


class Inside(Flat):
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x).pow(2).sum()
            (slope,) = torch.autograd.grad(energy, x, create_graph=True)
        return slope.flatten(1)


def autograd_inside():
    return Inside()


class Counting(Flat):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


def counts_in_a_buffer():
    return Counting()


class Experts(Flat):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x):
        hidden = torch.tanh(self.first(x.flatten(1)))
        chosen = hidden[:, :3].argmax(1)
        out = torch.zeros(len(x), 3)
        for place, expert in enumerate(self.experts):
            rows = (chosen == place).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(hidden[rows]))
        return out


def mixture_of_experts():
    return Experts()


def backward_hook():
    model = Flat()
    model.first.register_full_backward_hook(lambda module, inputs, outputs: None)
    return model


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3))


def exits_when_built():
    sys.exit(0)


def exits_with_words_when_built():
    sys.exit("no weights found")


class Exits(Flat):
    def forward(self, x):
        sys.exit(0)


def exits_in_forward():
    return Exits()


class Raises(Flat):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def forward(self, x):
        raise self.error


def raises_key_error():
    return Raises(KeyError("embedding"))


def raises_assertion():
    return Raises(AssertionError())


def raises_not_implemented():
    return Raises(NotImplementedError)


def raises_stop_iteration():
    return Raises(StopIteration())


def raises_many_lines():
    return Raises(RuntimeError("first line\nsecond line\nthird line"))


def raises_when_built():
    raise ZeroDivisionError("division by zero")


class Endless(Flat):
    def forward(self, x):
        return self.forward(x)


def calls_itself():
    return Endless()


def builds_none():
    return None


def builds_text():
    return "model"


def builds_tensor():
    return torch.zeros(3)


def builds_class():
    return Flat


def builds_dict():
    return {"model": Flat()}


def builds_state():
    return Flat().state_dict()


def needs_arguments(width, depth):
    return Flat()


class WrongShape(Flat):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(17, 8)


def wrong_shape():
    return WrongShape()


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 8)

    def forward(self, tokens):
        return self.table(tokens).mean(1)


def tokens():
    return Tokens()


class TwoInputs(Flat):
    def forward(self, x, mask):
        return super().forward(x) * mask


def two_inputs():
    return TwoInputs()


class Prints(Flat):
    def forward(self, x):
        print("hello from forward")
        return super().forward(x)


def prints():
    return Prints()


NOT_A_FUNCTION = 3


class SevenIds(nn.Module):
    """A network on seven token ids of thirty."""

    def __init__(self):
        super().__init__()
        self.table, self.place = nn.Embedding(30, 6), nn.Parameter(torch.randn(7, 6))
        self.head = nn.Linear(6, 2)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids) + self.place).mean(1))


def seven_ids():
    return SevenIds()
