"""ScienceWorld: experiments of a science class in a house with a workshop, played in Java."""
