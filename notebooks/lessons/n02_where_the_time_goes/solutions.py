# %% queue
def queue(launch_us, kernel_us):
    host = gpu = 0.0  # when each has done what it has begun
    ends = []
    for launch, kernel in zip(launch_us, kernel_us, strict=True):
        host += launch
        gpu = max(host, gpu) + kernel
        ends.append(gpu)
    return ends


solved = puzzles.attempt("queue", queue)

# %% clock
def clock(call, wait, now, times):
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


solved = puzzles.attempt("clock", clock)

# %% floor
def floor(kernels, bandwidth, peak, launch_us):
    gpu = sum(max(moved / bandwidth, flops / peak) for moved, flops in kernels)
    return max(1e6 * gpu, launch_us * len(kernels))


solved = puzzles.attempt("floor", floor)
