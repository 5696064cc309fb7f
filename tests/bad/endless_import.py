
while True:
    pass
