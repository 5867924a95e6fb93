"""What a clumsy or a hostile user does: no case ends in a traceback, a signal, a hang, a bomb, or code that ran."""
