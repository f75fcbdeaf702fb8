"""Answers to the puzzles of notebooks/02_where_the_time_goes.ipynb that must be turned down, and unusual right ones."""

# %% puzzle_queue: the GPU does not wait for the host -> short kernels: .*expected [\s\S]*begins after its launch
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu += kernel
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: the host waits for each kernel -> short kernels: .*got 24[\s\S]*host waits for none
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host = max(host, gpu) + launch
        gpu = host + kernel
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: the kernel begins with its launch -> short kernels: .*are wrong[\s\S]*begins after its launch
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        gpu = max(host, gpu) + kernel
        host += launch
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: no queue: kernels overlap -> long kernels: .*expected 85, got[\s\S]*the one before has ended
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu = host + kernel
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: the slower one, kernel by kernel -> short kernels: .*are wrong[\s\S]*Hint: A kernel begins after
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu += max(launch, kernel)
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: the host waits where the GPU is behind -> a long one first: .*are wrong[\s\S]*goes on launching
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host = max(host + launch, gpu)
        gpu = host + kernel
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% puzzle_queue: a cheat: ends as they were asked for in the first case -> are wrong|shape
def queue(launch_us, kernel_us):
    return [6.0, 11.0, 16.0, 21.0]


puzzles.attempt("queue", queue)

# %% puzzle_queue: nothing is returned -> must return numbers, in µs; got NoneType
def queue(launch_us, kernel_us):
    pass


puzzles.attempt("queue", queue)

# %% puzzle_queue: right: sums of what is launched before, the longest way through
def queue(launch_us, kernel_us):
    count = range(len(kernel_us))
    return [max(sum(launch_us[: k + 1]) + sum(kernel_us[k : i + 1]) for k in range(i + 1)) for i in count]


puzzles.attempt("queue", queue)

# %% puzzle_queue: right: a tensor
def queue(launch_us, kernel_us):
    import torch

    host = gpu = 0.0
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu = max(host, gpu) + kernel
        ends.append(gpu)
    return torch.tensor(ends)


solved = puzzles.attempt("queue", queue)

# %% puzzle_clock: the clock stops when the calls have returned -> long kernels: .*got 5,[\s\S]*when it stops
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: a wait after each call -> long kernels: .*expected 30.5, got 35,[\s\S]*once after the last
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
        wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: no wait before the clock starts -> long kernels: .*is wrong[\s\S]*Wait before
def clock(call, wait, now, times):
    call()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: no call before the clock starts -> a slow first call: .*got 930.5[\s\S]*make one call before
def clock(call, wait, now, times):
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: neither a call nor a wait before -> a busy GPU: .*is wrong[\s\S]*Another kernel still runs
def clock(call, wait, now, times):
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: the clock starts before the first call -> long kernels: .*is wrong
def clock(call, wait, now, times):
    start = now()
    call()
    wait()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: of all calls together -> long kernels: .*expected 30.5, got 305
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return now() - start


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: a cheat: the number of the first case -> short kernels: .*is wrong
def clock(call, wait, now, times):
    return 30.5


puzzles.attempt("clock", clock)

# %% puzzle_clock: ten calls, whatever is asked for -> short kernels: .*is wrong[\s\S]*`times` calls between
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(10):
        call()
    wait()
    return (now() - start) / 10


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: seconds -> long kernels: .*got 3.05e-05[\s\S]*their µs divided by `times`
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times / 1e6


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: the slope between many calls and twice as many, which is not asked for -> .*got 30,[\s\S]*divided by
def clock(call, wait, now, times):
    def total(count):
        wait()
        start = now()
        for _ in range(count):
            call()
        wait()
        return now() - start

    call()
    return (total(2 * times) - total(times)) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_clock: right: three calls to warm up, a wait after each
def clock(call, wait, now, times):
    for _ in range(3):
        call()
        wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    end = now()
    return (end - start) / times


solved = puzzles.attempt("clock", clock)

# %% puzzle_floor: the larger of all bytes' and all FLOPs' time -> one of each: .*is wrong[\s\S]*each has its floor
def floor(kernels, bandwidth, peak, launch_us):
    gpu = max(sum(moved for moved, _ in kernels) / bandwidth, sum(flops for _, flops in kernels) / peak)
    return max(1e6 * gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: bytes and FLOPs one after the other -> that multiplies: .*got 102[\s\S]*side by side
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(moved / bandwidth + flops / peak for moved, flops in kernels)
    return max(1e6 * gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: seconds -> one kernel that copies: .*is wrong[\s\S]*are seconds
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(max(moved / bandwidth, flops / peak) for moved, flops in kernels)
    return max(gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: no host -> many small ones: .*expected 385, got[\s\S]*must be launched
def floor(kernels, bandwidth, peak, launch_us):
    return 1e6 * sum(max(moved / bandwidth, flops / peak) for moved, flops in kernels)


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: the launches are added -> one kernel that copies: .*is wrong
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(max(moved / bandwidth, flops / peak) for moved, flops in kernels)
    return 1e6 * gpu + launch_us * len(kernels)


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: host or GPU, kernel by kernel -> a long one and small ones: .*is wrong[\s\S]*over the whole step
def floor(kernels, bandwidth, peak, launch_us):
    return sum(max(1e6 * moved / bandwidth, 1e6 * flops / peak, launch_us) for moved, flops in kernels)


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: the shorter of the two times -> one kernel that .*is wrong
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(min(moved / bandwidth, flops / peak) for moved, flops in kernels)
    return max(1e6 * gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: a cheat: bytes alone -> one kernel that multiplies: .*expected 100, got 2
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(moved for moved, _ in kernels) / bandwidth
    return max(1e6 * gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: the queue: what the first launch costs -> one kernel that copies: .*got 3,[\s\S]*first launch comes
def floor(kernels, bandwidth, peak, launch_us):
    host = gpu = 0.0
    for moved, flops in kernels:
        host += launch_us
        gpu = max(host, gpu) + 1e6 * max(moved / bandwidth, flops / peak)
    return gpu


solved = puzzles.attempt("floor", floor)

# %% puzzle_floor: right: rates in µs, a loop
def floor(kernels, bandwidth, peak, launch_us):
    host = gpu = 0.0
    for moved, flops in kernels:
        host += launch_us
        gpu += max(moved / (bandwidth / 1e6), flops / (peak / 1e6))
    return host if host > gpu else gpu


solved = puzzles.attempt("floor", floor)
