"""Answers to the puzzles of 25_past_one_gpu.ipynb, a section a puzzle."""

# %% route
def route(ids, owner, rank, world):  # ids [b, F], owner: of each table -> ids to send [b F], send, receive
    tables = [[f for f in range(len(owner)) if owner[f] == to] for to in range(world)]
    sent = torch.cat([ids[:, chosen].flatten() for chosen in tables])
    send = [len(ids) * len(chosen) for chosen in tables]
    receive = [len(ids) * len(tables[rank])] * world
    return sent, send, receive


solved = puzzles.attempt("route", route)
route = puzzles.passed("route")  # yours, or until it passes the lecture's

# %% exchange
def exchange(x, send, receive):  # [sum(send), …] -> [sum(receive), …]
    rank, world = dist.get_rank(), dist.get_world_size()
    out = x.new_empty(sum(receive), *x.shape[1:])
    parts, places = x.contiguous().split(send), out.split(receive)
    places[rank].copy_(parts[rank])
    works = []
    for other in range(world):
        if other != rank:
            works += [dist.isend(parts[other], other), dist.irecv(places[other], other)]
    for work in works:
        work.wait()
    return out


solved = puzzles.attempt("exchange", exchange)
exchange = puzzles.passed("exchange")  # yours, or until it passes the lecture's

# %% backward
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, send, receive):
        ctx.splits = send, receive
        return exchange(x, send, receive)

    @staticmethod
    def backward(ctx, grad):  # [sum(receive), …] -> the gradients of x, send, receive
        send, receive = ctx.splits
        mine = exchange(grad, receive, send)
        return mine / dist.get_world_size(), None, None


solved = puzzles.attempt("backward", Exchange)
Exchange = puzzles.passed("backward")  # yours, or until it passes the lecture's

# %% agree
def agree(parameters, loss, stop):  # each has .grad; loss []; stop: was this rank told to? -> mean loss, stop
    parts = [p.grad.flatten() for p in parameters]
    told = torch.tensor([loss.item(), float(stop)])
    flat = torch.cat([*parts, told])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    *means, mean, told = flat.split([*map(len, parts), 1, 1])
    for p, grad in zip(parameters, means, strict=True):
        p.grad.copy_(grad.view_as(p))
    return mean.item(), told.item() > 0 or not math.isfinite(mean.item())


solved = puzzles.attempt("agree", agree)
agree = puzzles.passed("agree")  # yours, or until it passes the lecture's
