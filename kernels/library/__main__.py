from kernels.library import GENERATED, generated

GENERATED.write_text(generated())
print(GENERATED)
