import time

import torch


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        time.sleep(10**6)
