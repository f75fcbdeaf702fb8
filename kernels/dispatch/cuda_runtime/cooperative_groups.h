// Nothing of it is for the host.
#pragma once
